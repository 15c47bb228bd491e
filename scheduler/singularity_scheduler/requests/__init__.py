"""What requests may say: read, checked, refused with a sentence. Pure; `core` never imports it."""
