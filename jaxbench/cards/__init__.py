"""Cards: what a machine measured of itself in some minutes, judged, compared and listed. No JAX."""
