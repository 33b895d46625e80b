"""Which of the engines that could serve a request gets it: by hints of callers, by prefixes, by load."""
