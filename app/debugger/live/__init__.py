"""Engines that run now: started from the page Live in a process of their own, or attached to over their debug port."""
