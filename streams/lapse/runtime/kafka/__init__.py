"""All code that uses private parts of aiokafka and Faust: reading, writing, tables, connections."""
