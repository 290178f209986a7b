"""What is trained on a backbone.

In: features of images and texts, as each adapter's `FeatureSpec` asks for them. Out: scores.
Never: losses, batches or ranks; an adapter does not know how it is trained.
"""
