"""`enginewire bench`: a load generator, and the table of latencies that people know."""
