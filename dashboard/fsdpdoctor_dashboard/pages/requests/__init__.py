"""What addresses ask for: pages, made once and made ahead."""
