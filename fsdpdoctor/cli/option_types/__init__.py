"""What an option or an argument may be, where click takes more than makes sense."""
