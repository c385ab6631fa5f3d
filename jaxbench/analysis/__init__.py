"""Arithmetic on figures: statistics, scaling, money, what others published."""
