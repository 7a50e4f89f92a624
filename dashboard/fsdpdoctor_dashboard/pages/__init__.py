"""The pages of the app. Each is a function of the open runs."""
