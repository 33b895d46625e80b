"""A worker of the SMG gateway. Needs the extra `smg`, so it is loaded only when it is asked for."""
