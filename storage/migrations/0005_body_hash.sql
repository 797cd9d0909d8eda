-- What a message's body was when it was written, so that a resumption may act on the turn that somebody approved and read
-- the conversation before it afterwards: every body is still what its writer encoded. The second argument of the hash is
-- the number of that encoding. Null: written by an earlier release, and then everything is read first. A hash that another
-- major version of PostgreSQL computes differently says the same.
alter table messages add column body_hash bigint;
