"""`enginewire new-engine`: the files that somebody's own engine begins with."""
