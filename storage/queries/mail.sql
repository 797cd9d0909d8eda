-- name: put_event(event_id, kind, team_id, channel_id, ts, thread_ts, user_id, text, payload, now)
-- Stored before the ack. No row: this event, or this message, is there already.
insert into inbox (event_id, kind, team_id, channel_id, ts, thread_ts, user_id, text, payload, received_at,
                   next_attempt_at)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9, coalesce($10::timestamptz, now()), coalesce($10::timestamptz, now()))
on conflict do nothing
returning id;

-- name: put_click(event_id, kind, team_id, channel_id, ts, user_id, text, payload, now)
-- A click on an example, stored before the ack. It has no thread ('') until what announces it stands in Slack. No row:
-- this click is there already, or it is the second one of a double click.
insert into inbox (event_id, kind, team_id, channel_id, ts, thread_ts, user_id, text, payload, received_at,
                   next_attempt_at)
select $1, $2, $3, $4, $5, '', $6, $7, $8, coalesce($9::timestamptz, now()), coalesce($9::timestamptz, now())
where not exists (select from inbox twin
                  where twin.team_id = $3 and twin.channel_id = $4 and twin.thread_ts = '' and twin.handled_at is null
                    and twin.user_id = $6 and twin.text = $7)
on conflict do nothing
returning id;

-- name: take_mail(room, lease_s, now)
-- Leases up to $1 events that are due: a person's next one after everybody else's first one, so that one burst delays
-- nobody; then oldest first; each only when its thread has no older one that still waits for the drain. A thread's
-- order is Slack's (ts): two sockets may store its messages the other way round. What is attached to a live run waits
-- for that run's holder, not for the drain, and blocks nobody.
with ready as (
    select i.id, i.team_id, i.user_id
    from inbox i
    where i.handled_at is null and i.run_id is null and i.thread_ts <> ''
      and i.next_attempt_at <= coalesce($3::timestamptz, now())
      and (i.leased_until is null or i.leased_until <= coalesce($3::timestamptz, now()))
      and not exists (select from inbox older
                      where older.team_id = i.team_id and older.channel_id = i.channel_id
                        and older.thread_ts = i.thread_ts
                        and older.ts collate "C" < i.ts collate "C"
                        and older.handled_at is null and older.run_id is null)
    order by i.id
    limit 2000
), ranked as (
    select id, row_number() over (partition by team_id, user_id order by id) as turn from ready
), chosen as materialized (
    -- More than wanted, since other drains may be taking the very same ones.
    select id, turn from ranked order by turn, id limit 4 * $1::integer
), due as (
    select i.id
    from chosen join inbox i on i.id = chosen.id
    where i.handled_at is null and i.run_id is null and i.next_attempt_at <= coalesce($3::timestamptz, now())
      and (i.leased_until is null or i.leased_until <= coalesce($3::timestamptz, now()))
    order by chosen.turn, i.id
    limit $1
    for update of i skip locked
)
update inbox set leased_until = coalesce($3::timestamptz, now()) + make_interval(secs => $2)
from due
where inbox.id = due.id
returning inbox.id, kind, team_id, channel_id, ts, thread_ts, user_id, text, attempts,
          extract(epoch from coalesce($3::timestamptz, now()) - received_at)::float8 as age_s;

-- name: find_live_run(team_id, channel_id, thread_ts, user_id)
-- The live run of a (thread, owner), with the open suspensions it waits for. No row: there is none.
select to_json(r) as run,
       array(select s.id from suspensions s where s.run_id = r.id and s.status = 'open'
             order by s.call_seq, s.call_position) as open_suspensions,
       exists (select from suspensions s where s.run_id = r.id and s.status = 'open' and s.kind = 'outcome') as open_outcome
from live_threads l join runs r on r.id = l.run_id
where l.team_id = $1 and l.channel_id = $2 and l.thread_ts = $3 and l.user_id = $4;

-- name: find_last_ended(team_id, channel_id, thread_ts, user_id)
-- The newest ended run of a (thread, owner). No row: there is none.
select id from runs
where team_id = $1 and channel_id = $2 and thread_ts = $3 and user_id = $4 and state in ('halted', 'answered', 'failed')
order by ended_at desc limit 1;

-- name: retire_parent(run_id, now)
-- A follow-up takes over from an ended run, whose Continue and Ask again are retired. No row: it is live again.
with retired as (
    update runs set followed_up = true where id = $1 and state in ('halted', 'answered', 'failed')
    returning id
), redrawn as (
    update outbox set version = version + 1, attempts = 0, refused_at = null,
                      next_attempt_at = coalesce($2::timestamptz, now()), updated_at = coalesce($2::timestamptz, now())
    from retired
    where outbox.run_id = retired.id
      and (outbox.kind = 'halt'
           or (outbox.kind = 'card' and exists (select from suspensions s
                                                where s.run_id = retired.id and s.id = outbox.ref
                                                  and s.status = 'expired')))
)
select id from retired;

-- name: start_run(id, team_id, channel_id, thread_ts, user_id, owner, question, route, max_steps, max_tool_calls, max_spend_usd, max_elapsed_ms, scope, parent_id, worker_id, seqs, roles, bodies, raws, answers_seqs, answers_positions, letter_id, now, per_person)
-- -> running, claimed for $15 if given, unless $24 runs of its owner are claimed already; its first messages, its
-- progress line, and the letter handled. No row: the thread's owner has a live run, or the letter is handled already;
-- the caller rolls back.
with lettered as (
    update inbox set handled_at = coalesce($23::timestamptz, now()), run_id = $1, leased_until = null
    where inbox.id = $22 and handled_at is null and run_id is null
    returning inbox.id
), room as (
    select $15::uuid as worker_id
    where $24::integer is null
       or $24 > (select count(*) from workers join runs on runs.claimed_by = workers.id
                 where workers.died_at is null and runs.team_id = $2 and runs.user_id = $5)
), started as (
    insert into runs (id, team_id, channel_id, thread_ts, user_id, owner, question, route, max_steps, max_tool_calls,
                      max_spend_usd, max_elapsed_ms, state, scope, scope_resolved_at, parent_id, next_seq, claim_token,
                      claimed_by, created_at, claimable_at)
    select $1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, 'running', $13, coalesce($23::timestamptz, now()), $14,
           cardinality($16::integer[]), case when room.worker_id is not null then gen_random_uuid() end, room.worker_id,
           coalesce($23::timestamptz, now()), coalesce($23::timestamptz, now())
    from lettered left join room on true
    returning *
), said as (
    insert into messages (run_id, seq, role, body, raw, answers_seq, answers_position, created_at, body_hash)
    select started.id, m.seq, m.role, m.body, m.raw, m.answers_seq, m.answers_position,
           coalesce($23::timestamptz, now()),
           hashtextextended(m.body, 1)
    from started, unnest($16::integer[], $17::text[], $18::text[], $19::bytea[], $20::integer[], $21::integer[])
        as m (seq, role, body, raw, answers_seq, answers_position)
), kept as (
    insert into live_threads (team_id, channel_id, thread_ts, user_id, run_id)
    select team_id, channel_id, thread_ts, user_id, id from started
    on conflict (team_id, channel_id, thread_ts, user_id) do nothing
    returning run_id
), progress as (
    insert into outbox (place, run_id, kind, channel_id, thread_ts, next_attempt_at)
    select 'progress:' || id, id, 'progress', channel_id, thread_ts, coalesce($23::timestamptz, now()) from started
), traced as (
    insert into trace (run_id, at, kind, body)
    select id, coalesce($23::timestamptz, now()), 'started',
           json_build_object('letter', $22::bigint, 'parent', $14::text)::text from started
)
select started.claim_token::text as claim_token from started join kept on kept.run_id = started.id;

-- name: attach_letter(letter_id, run_id, now)
-- The letter waits for the run's holder, who learns of it. The run's row is locked by the caller. No row: the letter
-- is handled or attached already.
with attached as (
    update inbox set run_id = $2, leased_until = null, next_attempt_at = coalesce($3::timestamptz, now())
    where inbox.id = $1 and handled_at is null and inbox.run_id is null
    returning inbox.run_id
), told as (
    update runs set news = news + 1 from attached where runs.id = attached.run_id
)
select run_id from attached;

-- name: wake_superseded_run(run_id, worker_id, now)
-- suspended -> running: the owner wrote a new instruction; claimed for $2 if given. No row: it is not suspended.
with moved as (
    update runs set
        state = 'running',
        claim_token = case when $2::uuid is not null then gen_random_uuid() end, claimed_by = $2,
        claimable_at = coalesce($3::timestamptz, now())
    where id = $1 and state = 'suspended'
    returning *
), progressed as (
    update outbox set version = version + 1, attempts = 0, refused_at = null,
                      next_attempt_at = coalesce($3::timestamptz, now()), updated_at = coalesce($3::timestamptz, now())
    from moved where outbox.place = 'progress:' || moved.id
)
select to_json(moved) as run from moved;

-- name: handle_letter(letter_id, now)
-- Handled without a run. No row: handled or attached already.
update inbox set handled_at = coalesce($2::timestamptz, now()), leased_until = null
where id = $1 and handled_at is null and run_id is null
returning id;

-- name: retry_letter(letter_id, why, delay_s, now)
-- A failed attempt; due again later. No row: handled or attached already.
update inbox set attempts = attempts + 1, error = $2, leased_until = null,
                 next_attempt_at = coalesce($4::timestamptz, now()) + make_interval(secs => $3)
where id = $1 and handled_at is null and run_id is null
returning id;

-- name: park_letter(letter_id, why, now)
-- Given up on, so that it never blocks its thread. No row: handled or attached already.
update inbox set attempts = attempts + 1, error = $2, leased_until = null,
                 parked_at = coalesce($3::timestamptz, now()), handled_at = coalesce($3::timestamptz, now())
where id = $1 and handled_at is null and run_id is null
returning id;
