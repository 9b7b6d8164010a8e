"""What a pipeline says when it cannot do what it was asked."""


class PipelineError(Exception):
    """Input that does not fit, or a place that cannot be used; one sentence for the user."""
