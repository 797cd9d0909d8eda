-- name: halt_run(run_id, claim_token, reason, detail, next_worst_usd, now)
-- running -> halted by the claim's holder. No row: the claim is lost.
update runs set state = 'halted', halt_reason = $3, detail = $4, next_worst_usd = $5, halts = halts + 1,
                claim_token = null, claimed_by = null, stop_requested = null,
                ended_at = coalesce($6::timestamptz, now())
where id = $1 and claim_token = $2 and state = 'running'
returning to_json(runs) as run;

-- name: halt_unclaimed_run(run_id, reason, detail, now)
-- suspended, or running and unclaimed -> halted, by others than a worker (expiry, stop). No row: it is neither.
update runs set state = 'halted', halt_reason = $2, detail = $3, halts = halts + 1, doing = 'halted', stop_requested = null,
                ended_at = coalesce($4::timestamptz, now())
where id = $1 and claim_token is null and state in ('suspended', 'running')
returning to_json(runs) as run;

-- name: fail_run(run_id, claim_token, reason, detail, now)
-- running -> failed, by the claim's holder, or ($2 null) by the reaper on a run that it has just taken back. No row:
-- the claim is lost.
update runs set state = 'failed', fail_reason = $3, detail = $4, claim_token = null, claimed_by = null,
                stop_requested = null, ended_at = coalesce($5::timestamptz, now())
where id = $1 and claim_token is not distinct from $2::uuid and state = 'running'
returning to_json(runs) as run;

-- name: append_results(run_id, seqs, bodies, answers_seqs, answers_positions, now)
-- The reaper closes the open calls of a run that it fails: nobody holds its claim, and its row is locked.
with said as (
    insert into messages (run_id, seq, role, body, answers_seq, answers_position, created_at, body_hash)
    select $1, m.seq, 'tool', m.body, m.answers_seq, m.answers_position, coalesce($6::timestamptz, now()),
           hashtextextended(m.body, 1)
    from unnest($2::integer[], $3::text[], $4::integer[], $5::integer[]) as m (seq, body, answers_seq, answers_position)
)
update runs set next_seq = next_seq + cardinality($2::integer[]) where id = $1
returning id;

-- name: close_run_rows(run_id, stopped_card, now)
-- What every ending does to the rows that hang on the run: no action stays intended, no suspension open (its card
-- says so), the thread is free for a follow-up, unhandled mail goes back to the drain, the progress line is redrawn.
with doubted as (
    update actions set state = 'unknown' where run_id = $1 and state = 'intended'
), freed as (
    delete from live_threads where run_id = $1
), returned as (
    update inbox set run_id = null, next_attempt_at = coalesce($3::timestamptz, now()), leased_until = null
    where run_id = $1 and handled_at is null
), stopped as (
    update suspensions set status = 'stopped', reason = coalesce(reason, $2) where run_id = $1 and status = 'open'
    returning id
)
update outbox set version = version + 1, attempts = 0, refused_at = null,
                  next_attempt_at = coalesce($3::timestamptz, now()), updated_at = coalesce($3::timestamptz, now())
where run_id = $1
  and (kind = 'progress' or (kind = 'card' and ref in (select id from stopped)));

-- name: settle_left_cards(run_id, now)
-- For a failed run: each decided suspension whose card does not say yet what became of it says so, from its action.
with left_open as (
    select s.id, s.run_id, (select a.state from actions a
                            where a.run_id = s.run_id and a.call_seq = s.call_seq and a.call_position = s.call_position
                            order by a.intended_at desc limit 1) as action
    from suspensions s
    where s.run_id = $1 and s.settled_kind is null and s.status in ('approved', 'happened', 'did_not_happen')
), settled as (
    update suspensions set
        settled_kind = case l.action when 'unknown' then 'unknown' when 'succeeded' then 'done'
                                     when 'failed' then 'failed' else 'not_executed' end,
        settled_text = case l.action when 'unknown' then 'the run failed, and nobody knows whether this happened'
                                     when 'succeeded' then 'it happened' when 'failed' then 'it did not happen'
                                     else 'the run failed before it was executed' end
    from left_open l where suspensions.id = l.id
    returning suspensions.id, suspensions.run_id
)
update outbox set version = version + 1, attempts = 0, refused_at = null,
                  next_attempt_at = coalesce($2::timestamptz, now()), updated_at = coalesce($2::timestamptz, now())
from settled
where outbox.run_id = settled.run_id and outbox.kind = 'card' and outbox.ref = settled.id;

-- name: list_outcomes(run_id)
-- How each write of a run stands, for an alert.
select tool, state from actions where run_id = $1 order by call_seq, call_position, intended_at;

-- name: owe_message(place, run_id, kind, ref, channel_id, thread_ts, content, now)
-- A message is owed at a place; owed again with a higher version when it is there already.
insert into outbox (place, run_id, kind, ref, channel_id, thread_ts, content, next_attempt_at)
values ($1, $2, $3, $4, $5, $6, $7, coalesce($8::timestamptz, now()))
on conflict (place) do update set
    version = outbox.version + 1, content = excluded.content, attempts = 0, refused_at = null,
    next_attempt_at = excluded.next_attempt_at, updated_at = excluded.next_attempt_at;

-- name: owe_once(place, run_id, kind, ref, channel_id, thread_ts, content, now)
-- A notice or an alert, once per place whatever is retried. No row: it is owed or delivered already.
insert into outbox (place, run_id, kind, ref, channel_id, thread_ts, content, next_attempt_at)
values ($1, $2, $3, $4, $5, $6, $7, coalesce($8::timestamptz, now()))
on conflict (place) do nothing
returning place;

-- name: trace_event(run_id, kind, body, now)
insert into trace (run_id, at, kind, body) values ($1, coalesce($4::timestamptz, now()), $2, $3);

-- name: audit_attempt(run_id, call, suspension_id, tool, digest, act, by, via, allowed, why, now)
-- An attempt at a decision, allowed or refused. Whoever tries in vain may have pressed what should not stand any more:
-- messages of the run that were given up where they stand are tried again. Never waits for one: whoever has it locked
-- is about to say what is wanted of it.
with stale as (
    select place from outbox
    where not $9::boolean and run_id = $1::text and refused_at is not null and version > delivered_version
      and message_ts is not null
    for update skip locked
), revived as (
    update outbox set refused_at = null, attempts = 0, next_attempt_at = coalesce($11::timestamptz, now())
    from stale
    where outbox.place = stale.place
)
insert into audit (at, run_id, call, suspension_id, tool, digest, act, by, via, allowed, why)
values (coalesce($11::timestamptz, now()), $1::text, $2, $3, $4, $5, $6, $7, $8, $9::boolean, $10);

-- name: hint(channel, run_id)
-- Wake whoever listens, when this commits. A hint only: everybody polls as well.
select pg_notify($1, $2);
