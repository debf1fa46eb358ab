"""What the records of many hosts say together. Pure: nothing here touches a host or reads a file."""
