"""Tables → views: plain descriptions of pictures, already cut to the screen."""
