"""What a kernel takes on a device, from its shapes. No torch in here."""
