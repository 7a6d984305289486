"""What touches the private parts of aiokafka and Faust: reading, writing, tables, connections."""
