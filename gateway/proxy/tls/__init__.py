"""TLS on both sides: contexts and their files, handshakes with clients, why they fail, and whom a certificate names."""
