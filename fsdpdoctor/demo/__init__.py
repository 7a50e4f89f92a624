"""The small training that `fsdpdoctor demo` records."""
