"""Problems for samplers, and who answers them."""
