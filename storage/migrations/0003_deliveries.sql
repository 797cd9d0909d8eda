-- A delivery's lease has an owner, so that the lease of a killed process is free as soon as the process is known dead.
-- No foreign key: a lease outlives the row of its process, and a release before this one leaves both columns alone.
alter table outbox add column lease_owner uuid;
-- Until then an edit that an earlier holder of the lease has sent may still arrive, so what stands is said once more.
alter table outbox add column unsure_until timestamptz;
-- What was given up in a place, to be tried again once the place is heard of.
create index outbox_refused on outbox (message_channel) where refused_at is not null;
