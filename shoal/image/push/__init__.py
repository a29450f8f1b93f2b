"""An image -> a registry: login, layers, manifest, tags; nothing that exists is overwritten."""
