"""What a run goes on from: its place, its generation batch, the settings it was saved with."""
