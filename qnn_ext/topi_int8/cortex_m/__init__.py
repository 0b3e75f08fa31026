"""ARM's microcontrollers: products with smlad and with Helium, and what their code needs besides."""
