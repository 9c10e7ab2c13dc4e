"""What several tests need: real servers, and a proxy that loses replies."""
