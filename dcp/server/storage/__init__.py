"""The logs of vbuckets and the data folder: batches of frames, their index, compaction, scans."""
