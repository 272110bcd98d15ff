"""The thin shell: it carries out what the engine says, and decides no business."""
