"""Tables → views: plain descriptions of pictures, cut to the screen, and text for the terminal."""
