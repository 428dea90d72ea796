"""Where workers run: in this process, in processes of their own, as Ray actors."""
