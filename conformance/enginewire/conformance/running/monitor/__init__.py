"""What has to hold on every exchange of a run, whichever check made it.

A check looks at one request with one set of options. The invariants here need no scenario, so they look at
all requests: `facts` is what there is to look at, a module per noun has the invariants, `watch` applies them.
"""
