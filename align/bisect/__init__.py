"""Which setting is it: experiments that narrow a cause down, and what recorded runs tell alone."""
