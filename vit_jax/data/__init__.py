"""From files to batches: sources, host transforms, the pipeline."""

import cv2

cv2.setNumThreads(0)  # The pipeline's own threads are enough.
