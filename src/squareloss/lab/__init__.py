"""Everything that runs experiments: data, training, studies, runs and reports."""
