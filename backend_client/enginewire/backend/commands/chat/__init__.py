"""`enginewire chat`: a conversation in the terminal, with a running backend or one of its own."""
