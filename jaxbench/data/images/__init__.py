"""Decoding encoded images."""
