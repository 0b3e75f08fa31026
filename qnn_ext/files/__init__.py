"""Files: writing them whole or not at all, reading untrusted ones with care, and signatures."""
