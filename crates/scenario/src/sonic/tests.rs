//! Tests of reading and writing `config_db.json`.
