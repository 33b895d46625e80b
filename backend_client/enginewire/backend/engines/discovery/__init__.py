"""Which engines there are: names in DNS and files that are looked at again, and who follows them."""
