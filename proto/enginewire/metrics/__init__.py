"""What every program of ours counts and names alike: histograms, and the values of labels.

Who counts what, and who shows it, is up to the programs.
"""
