-- name: register_worker(id, host, pid, role, lock_key, holds_lock, now)
insert into workers (id, host, pid, role, lock_key, holds_lock, started_at, beat_at)
values ($1, $2, $3, $4, $5, $6, coalesce($7::timestamptz, now()), coalesce($7::timestamptz, now()))
on conflict (id) do update set
    host = excluded.host, pid = excluded.pid, role = excluded.role, lock_key = excluded.lock_key,
    holds_lock = excluded.holds_lock, beat_at = excluded.beat_at, died_at = null, held = null
returning beat_at;

-- name: unregister_worker(id)
-- A clean shutdown, after its runs were released.
delete from workers where id = $1;

-- name: beat_worker(id, now)
-- A sign of life; whoever was taken for dead is alive again. No row: it was never registered, or removed.
update workers set beat_at = coalesce($2::timestamptz, now()), died_at = null, held = null where id = $1
returning beat_at;

-- name: hold_session_lock(lock_key)
-- For as long as this very connection lives. False: another session has it.
select pg_try_advisory_lock($1) as held;

-- name: end_stalled_sessions(stalled_s)
-- Ends sessions of Atlas that PostgreSQL has waited for in the middle of a statement for $1 seconds: a stopped process
-- that had named its statement and not yet run it, or that does not read what its statement returns (a claim of many
-- runs fills a socket). No time limit of a session covers that wait (idle means: between statements; only
-- transaction_timeout would, from version 17 on), and its locks would last as long as it stays stopped.
select pg_terminate_backend(pid) from pg_stat_activity
where datname = current_database() and usename = current_user and application_name = 'atlas'
  and state = 'active' and wait_event in ('ClientRead', 'ClientWrite')
  and query_start < clock_timestamp() - make_interval(secs => $1);

-- name: mark_dead_workers(lease_s, quick, quick_after_s, since, now)
-- Finds dead processes and remembers how many runs each held when it died, so that "alone" stays true over several
-- batches of reaping. Dead: no beat for the lease; or ($2), for a process that held a session lock, the lock is free
-- and the beat is over $3 seconds old. A live worker can lose its connection, so a free lock alone proves nothing. Nor
-- does an old beat, to a judge whose own beats are as old: nobody who has beaten since $4 is dead (null: anybody may be).
update workers w set died_at = coalesce($5::timestamptz, now()),
                     held = (select count(*) from runs where runs.claimed_by = w.id)
where w.died_at is null and w.beat_at < coalesce($4::timestamptz, 'infinity')
  and (w.beat_at <= coalesce($5::timestamptz, now()) - make_interval(secs => $1)
       or ($2::boolean and w.holds_lock and w.beat_at <= coalesce($5::timestamptz, now()) - make_interval(secs => $3)
           and not exists (
               select from pg_locks l
               where l.locktype = 'advisory' and l.granted and l.objsubid = 1
                 and l.database = (select d.oid from pg_database d where d.datname = current_database())
                 and ((l.classid::bigint << 32) | l.objid::bigint) = w.lock_key)))
returning w.id;

-- name: mark_missing_workers(now)
-- The same for claims of a process that has no row any more. Holders are found from one to the next in the index, so
-- that a look costs as much as there are holders, not as much as they hold: it is repeated before every batch.
with recursive holders as (
    (select claimed_by as id from runs where claimed_by is not null order by claimed_by limit 1)
    union all
    (select other.id
     from holders cross join lateral (
         select claimed_by as id from runs where claimed_by > holders.id order by claimed_by limit 1) other)
)
insert into workers (id, host, pid, role, lock_key, holds_lock, started_at, beat_at, died_at, held)
select h.id, '', 0, 'gone', 0, false, coalesce($1::timestamptz, now()), '-infinity',
       coalesce($1::timestamptz, now()), (select count(*) from runs r where r.claimed_by = h.id)
from holders h
where not exists (select from workers w where w.id = h.id)
on conflict (id) do nothing
returning id;

-- name: any_orphans()
-- Whether a process that is marked dead holds anything: a look every half second, so no transaction for nothing.
select exists (select from workers w join runs r on r.claimed_by = w.id where w.died_at is not null);

-- name: reap_runs(room, now)
-- running (orphan) -> running (unclaimed), up to $1 runs of processes that are marked dead, the longest dead first. A
-- crash is counted for each; a recovery attempt only for a run that was alone in the dead process. A batch reads no
-- more of what a dead process holds than it may take, with some to spare for what other reapers are taking.
with found as materialized (
    select orphan.id, dead.held, dead.beat_at
    from (select id, held, beat_at from workers where died_at is not null order by beat_at) dead
    cross join lateral (select id from runs where claimed_by = dead.id limit 4 * $1::integer) orphan
    order by dead.beat_at
    limit 4 * $1::integer
), orphans as (
    select runs.id, runs.claim_token, runs.claimed_by, found.held
    from found join runs on runs.id = found.id
    where runs.state || '' = 'running' and runs.claim_token is not null
    order by found.beat_at
    limit $1
    for update of runs skip locked
), reaped as (
    update runs set claim_token = null, claimed_by = null, claimable_at = coalesce($2::timestamptz, now()),
                    crashes = crashes + 1, charge_due = true,
                    recovery_attempts = recovery_attempts + case when o.held = 1 then 1 else 0 end
    from orphans o
    where runs.id = o.id and runs.claim_token = o.claim_token and runs.state = 'running'
      and exists (select from workers w where w.id = o.claimed_by and w.died_at is not null)
    returning runs.id, o.claimed_by, o.held = 1 as alone, runs.recovery_attempts, runs.crashes
), traced as (
    insert into trace (run_id, at, kind, body)
    select id, coalesce($2::timestamptz, now()), 'reaped',
           json_build_object('worker', claimed_by, 'alone', alone, 'recovery_attempts', recovery_attempts,
                             'crashes', crashes)::text
    from reaped
)
select id, claimed_by::text as worker_id, alone, recovery_attempts, crashes from reaped;

-- name: list_runs_with_expired(room, now)
-- Runs with an open suspension whose time is over, longest over first.
select run_id from suspensions
where status = 'open' and expires_at <= coalesce($2::timestamptz, now())
group by run_id order by min(expires_at) limit $1;

-- name: list_to_remind(at_most_s, room, now)
-- Open suspensions of which a third of the time, at most $1 seconds, is left, whose card stands somewhere, and whose
-- people were not reminded yet.
select s.id
from suspensions s
where s.status = 'open' and s.expires_at > coalesce($3::timestamptz, now())
  and s.expires_at <= coalesce($3::timestamptz, now()) + make_interval(secs => $1)
  and s.expires_at - coalesce($3::timestamptz, now()) <= (s.expires_at - s.opened_at) / 3
  and exists (select from outbox o
              where o.run_id = s.run_id and o.ref = s.id and starts_with(o.place, 'card:') and o.message_ts is not null
                and o.refused_at is null)
  and not exists (select from outbox o
                  where o.run_id = s.run_id and o.ref = s.id and starts_with(o.place, 'notice:' || s.id || ':reminder'))
order by s.expires_at limit $2;

-- name: owe_reminder(suspension_id, now)
-- A reminder beside each copy of the card that stands somewhere, once. No row: owed already, or not open any more.
insert into outbox (place, run_id, kind, ref, channel_id, thread_ts, content, next_attempt_at)
select 'notice:' || s.id || ':reminder' || substr(card.place, length('card:' || s.id) + 1), s.run_id, 'notice', s.id,
       card.message_channel, coalesce(card.thread_ts, card.message_ts), '{"reminder":true}',
       coalesce($2::timestamptz, now())
from suspensions s
join outbox card on card.run_id = s.run_id and card.ref = s.id and starts_with(card.place, 'card:')
                    and card.message_ts is not null and card.refused_at is null
where s.id = $1 and s.status = 'open'
on conflict (place) do nothing
returning place;

-- name: hasten_suspensions(run_id, seconds, now)
-- For the demo and tests: a run's open suspensions expire in $2 seconds, and their cards say so.
with hastened as (
    update suspensions set expires_at = coalesce($3::timestamptz, now()) + make_interval(secs => $2)
    where run_id = $1 and status = 'open' and expires_at > coalesce($3::timestamptz, now()) + make_interval(secs => $2)
    returning id, run_id
), carded as (
    update outbox set version = version + 1, next_attempt_at = coalesce($3::timestamptz, now())
    from hastened
    where outbox.run_id = hastened.run_id and outbox.kind = 'card' and outbox.ref = hastened.id
)
select id from hastened;

-- name: remove_ended_runs(older_than_s, room, now)
-- Ended runs with everything that hangs on them, never one with an action whose outcome is unknown.
with old as (
    select id from runs
    where ended_at < coalesce($3::timestamptz, now()) - make_interval(secs => $1)
      and state in ('answered', 'failed', 'halted')
      and not exists (select from actions a where a.run_id = runs.id and a.state in ('unknown', 'intended'))
    order by ended_at limit $2
    for update skip locked
), unsaid as (
    delete from messages using old where messages.run_id = old.id
), untraced as (
    delete from trace using old where trace.run_id = old.id
)
delete from runs using old where runs.id = old.id returning runs.id;

-- name: remove_old_audit(older_than_s, room, now)
delete from audit where id in (select id from audit
    where at < coalesce($3::timestamptz, now()) - make_interval(secs => $1) order by at limit $2)
returning id;

-- name: remove_handled_mail(older_than_s, room, now)
delete from inbox where id in (select id from inbox
    where handled_at < coalesce($3::timestamptz, now()) - make_interval(secs => $1) order by handled_at limit $2)
returning id;

-- name: remove_old_messages(older_than_s, room, now)
-- Delivered or refused messages that belong to no run (alerts, notices). That somebody was welcomed is kept.
delete from outbox where place in (select place from outbox
    where run_id is null and not starts_with(place, 'welcome:') and (delivered_version >= version or refused_at is not null)
      and updated_at < coalesce($3::timestamptz, now()) - make_interval(secs => $1) limit $2)
returning place;

-- name: remove_old_pace(older_than_s, room, now)
delete from pace where (team_id, channel_id, method) in (select team_id, channel_id, method from pace
    where next_at < coalesce($3::timestamptz, now()) - make_interval(secs => $1) limit $2)
returning method;

-- name: remove_dead_workers(older_than_s, room, now)
-- Dead processes that hold nothing any more.
delete from workers where id in (select w.id from workers w
    where w.died_at < coalesce($3::timestamptz, now()) - make_interval(secs => $1)
      and not exists (select from runs r where r.claimed_by = w.id) limit $2)
returning id;

-- name: count_rows(alive_s, now)
-- For metrics.
select (select coalesce(json_object_agg(state, n), '{}') from (select state, count(*) as n from runs group by state) s) as runs,
       (select count(*) from runs where state = 'running' and claim_token is null) as claimable,
       (select count(*) from outbox where version > delivered_version and refused_at is null) as owed,
       (select coalesce(extract(epoch from coalesce($2::timestamptz, now()) - min(updated_at)), 0)::float8
        from outbox where version > delivered_version and refused_at is null) as oldest_owed_s,
       (select count(*) from outbox where refused_at is not null) as refused,
       (select count(*) from suspensions where status = 'open') as open_suspensions,
       (select count(*) from inbox where handled_at is null) as unhandled_mail,
       (select count(*) from workers where died_at is null
            and beat_at > coalesce($2::timestamptz, now()) - make_interval(secs => $1)) as workers_alive;

-- name: read_readiness()
select pg_is_in_recovery() or current_setting('transaction_read_only') = 'on' as read_only;
