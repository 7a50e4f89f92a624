"""What pages draw: plotly figures, and bars and maps of plain HTML."""
