"""What is held in one step of the training, storage by storage.

[Note: The memory step] One recorded step, after the first, is counted: a dispatch mode
sees each storage as it is made, and a weak reference tells when it has gone. The mode
is there from the step's first forward to its optimizer's end. It returns what torch
returned, so that no number changes; what torch itself does otherwise under any mode
is refused beforehand, see `refusals`. An error of ours ends the counting, not the
recording.
"""
