"""What every capability stands on: documents, statistics, and the values that capabilities share."""
