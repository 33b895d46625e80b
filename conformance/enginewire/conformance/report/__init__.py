"""Reports: each turns one `outcome.Report` into text. None of them decides anything."""
