"""Offers: the same run on rented machines, as tasks for the engines that rent them."""
