-- name: lock_suspension(suspension_id, now)
-- Locks a suspension's run, then the suspension, and returns both as they are once the locks are held. Votes are read
-- by the next statement, whose snapshot is later. No row: there is no such suspension.
select to_json(r) as run, to_json(s) as suspension, s.expires_at <= coalesce($2::timestamptz, now()) as over
from runs r join suspensions s on s.run_id = r.id
where s.id = $1
for update of r, s;

-- name: lock_run(run_id)
-- Everybody but the claim's holder locks the run first, then changes what hangs on it. No row: there is no such run.
select to_json(runs) as run from runs where id = $1 for update;

-- name: lock_run_unless_busy(run_id)
-- The same for sweeps, which come back later for a run that somebody else holds. No row: busy, or gone.
select to_json(runs) as run from runs where id = $1 for update skip locked;

-- name: record_vote(suspension_id, user_id, now)
-- One vote per person. "fresh" false: this person has voted before.
with cast_now as (
    insert into votes (suspension_id, user_id, at) values ($1, $2, coalesce($3::timestamptz, now()))
    on conflict (suspension_id, user_id) do nothing
    returning user_id
)
select exists (select from cast_now) as fresh,
       array(select user_id from votes where suspension_id = $1 order by at, user_id) as earlier;

-- name: note_vote(run_id, suspension_id, now)
-- A vote that decides nothing yet: the card shows it, the claim's holder learns of it.
with moved as (
    update runs set news = news + 1 where id = $1 returning *
), carded as (
    update outbox set version = version + 1, attempts = 0, refused_at = null,
                      next_attempt_at = coalesce($3::timestamptz, now()), updated_at = coalesce($3::timestamptz, now())
    where run_id = $1 and kind = 'card' and ref = $2
)
select to_json(moved) as run from moved;

-- name: decide_suspension(run_id, suspension_id, status, by, reason, edited_arguments, worker_id, act, via, voting, hints, now, token, digest)
-- open -> approved, declined, edited, happened or did_not_happen, and the run suspended -> running, claimed for $7 if
-- given. A run that is running already (a sibling executes) only learns that there is news. One statement, since a
-- person waits for it: the vote ($10), the audit, the card and the hints ($11) ride along. $13 and $14: the token and
-- digest of the click, for a caller who has locked nothing; then only an approval that one person's yes decides counts,
-- in time. "was": the run's state before. No row: it is not open, the run has ended, or, with a token, the click is not
-- plainly good or somebody holds a row just now: look again under the lock.
with held as (
    select r.state as was
    from runs r join suspensions s on s.run_id = r.id
    where r.id = $1 and s.id = $2
      and ($13::text is null
           or (s.token = $13 and s.digest = coalesce($14::text, s.digest) and s.kind = 'approval' and s.status = 'open'
               and s.expires_at > coalesce($12::timestamptz, now()) and r.state in ('suspended', 'running')
               and coalesce((s.policy::json ->> 'count')::integer, 1) = 1))
    for update of r, s skip locked
), decided as (
    update suspensions set status = $3, decided_at = coalesce($12::timestamptz, now()), decided_by = $4, reason = $5,
                           edited_arguments = $6::text, edited_by = case when $6::text is null then edited_by else $4 end
    where id = $2 and run_id = $1 and status = 'open'
      and exists (select from runs where id = $1 and state in ('suspended', 'running'))
      and exists (select from held)
    returning *
), moved as (
    update runs set
        state = 'running',
        news = news + 1,
        claim_token = case when state = 'suspended' and $7::uuid is not null then gen_random_uuid() else claim_token end,
        claimed_by = case when state = 'suspended' then $7::uuid else claimed_by end,
        claimable_at = case when state = 'suspended' then coalesce($12::timestamptz, now()) else claimable_at end
    from decided
    where runs.id = decided.run_id and runs.state in ('suspended', 'running')
    returning runs.*
), voted as (
    insert into votes (suspension_id, user_id, at)
    select id, $4, coalesce($12::timestamptz, now()) from decided where $10::boolean
    on conflict (suspension_id, user_id) do nothing
), carded as (
    update outbox set version = version + 1, attempts = 0, refused_at = null,
                      next_attempt_at = coalesce($12::timestamptz, now()),
                      updated_at = coalesce($12::timestamptz, now())
    from decided
    where outbox.run_id = decided.run_id
      and ((outbox.kind = 'card' and outbox.ref = decided.id) or outbox.kind = 'progress')
), traced as (
    insert into trace (run_id, at, kind, body)
    select run_id, coalesce($12::timestamptz, now()), 'suspension.' || status,
           json_build_object('suspension', id, 'tool', tool, 'by', $4::text, 'reason', $5::text)::text
    from decided
), audited as (
    insert into audit (at, run_id, call, suspension_id, tool, digest, act, by, via, allowed, why)
    select coalesce($12::timestamptz, now()), run_id, call_seq || ':' || call_position, id, tool, digest, $8, $4, $9,
           true, coalesce($5, status)
    from decided
)
select to_json(moved) as run, to_json(decided) as suspension, (select was from held) as was,
       case when $11::boolean then pg_notify('atlas_outbox', moved.id)::text end as outbox_hint,
       case when $11::boolean and moved.claim_token is null then pg_notify('atlas_work', moved.id)::text end as work_hint
from moved, decided;

-- name: answer_after_halt(run_id, suspension_id, status, action_state, by, reason, now)
-- An outcome answered after its run halted on it: the suspension and its action record the answer, nothing starts. No
-- row: the run is not halted, or the suspension is no expired outcome.
with answered as (
    update suspensions set status = $3, decided_at = coalesce($7::timestamptz, now()), decided_by = $5, reason = $6
    where id = $2 and run_id = $1 and status = 'expired' and kind = 'outcome'
      and exists (select from runs where id = $1 and state = 'halted')
    returning *
), believed as (
    update actions set state = $4, ended_at = coalesce($7::timestamptz, now())
    from answered
    where actions.run_id = answered.run_id and actions.call_seq = answered.call_seq
      and actions.call_position = answered.call_position and actions.state in ('intended', 'unknown')
), carded as (
    update outbox set version = version + 1, attempts = 0, refused_at = null,
                      next_attempt_at = coalesce($7::timestamptz, now()), updated_at = coalesce($7::timestamptz, now())
    from answered
    where outbox.run_id = answered.run_id and ((outbox.kind = 'card' and outbox.ref = answered.id) or outbox.kind = 'halt')
), traced as (
    insert into trace (run_id, at, kind, body)
    select run_id, coalesce($7::timestamptz, now()), 'suspension.' || status,
           json_build_object('suspension', id, 'tool', tool, 'by', $5::text, 'after_halt', true)::text
    from answered
)
select to_json(answered) as suspension from answered;

-- name: expire_suspensions(run_id, now)
-- open -> expired, every one of the run whose time is over; cards say so, the claim's holder learns of it.
with expired as (
    update suspensions set status = 'expired'
    where run_id = $1 and status = 'open' and expires_at <= coalesce($2::timestamptz, now())
    returning *
), told as (
    update runs set news = news + 1 where id = $1 and exists (select from expired)
), carded as (
    update outbox set version = version + 1, attempts = 0, refused_at = null,
                      next_attempt_at = coalesce($2::timestamptz, now()), updated_at = coalesce($2::timestamptz, now())
    from expired
    where outbox.run_id = expired.run_id and outbox.kind = 'card' and outbox.ref = expired.id
), traced as (
    insert into trace (run_id, at, kind, body)
    select run_id, coalesce($2::timestamptz, now()), 'suspension.expired',
           json_build_object('suspension', id, 'tool', tool)::text
    from expired
)
select to_json(expired) as suspension from expired order by call_seq, call_position;

-- name: look_for_siblings(run_id)
-- Whether a suspended run still waits for anybody, and whether an outcome that nobody gave is among what it waited for.
select exists (select from suspensions where run_id = $1 and status = 'open') as open,
       exists (select from suspensions s join actions a
                   on (a.run_id, a.call_seq, a.call_position) = (s.run_id, s.call_seq, s.call_position)
               where s.run_id = $1 and s.kind = 'outcome' and s.status = 'expired'
                 and a.state in ('intended', 'unknown')) as unknown,
       exists (select from actions where run_id = $1 and state in ('intended', 'unknown')) as acting;

-- name: request_stop(run_id, by, now)
-- running -> running, or suspended -> running (unclaimed): somebody asked to stop while an action is open; the next
-- act looks at this first. No row: the run has ended.
update runs set stop_requested = coalesce(stop_requested, $2), news = news + 1,
                claimable_at = case when state = 'suspended' then coalesce($3::timestamptz, now()) else claimable_at end,
                state = 'running'
where id = $1 and state in ('suspended', 'running')
returning to_json(runs) as run;

-- name: keep_thread(run_id)
-- The run becomes the live one of its (thread, owner) again. No row: there is another.
insert into live_threads (team_id, channel_id, thread_ts, user_id, run_id)
select team_id, channel_id, thread_ts, user_id, id from runs where id = $1
on conflict (team_id, channel_id, thread_ts, user_id) do nothing
returning run_id;

-- name: continue_run(run_id, halts, max_steps, max_tool_calls, max_spend_usd, max_elapsed_ms, scope, worker_id, now)
-- halted -> running with the granted limits, once per halt ($2), claimed for $8 if given. What a person said about an
-- outcome after the halt is for the claim's holder to believe: such an action is unknown until it has. Where an expiry
-- was the halt, its cards say that the run went on. No row: not halted, another halt, or a follow-up took over.
with before as (
    select halt_reason in ('suspension_expired', 'outcome_unknown') as expired,
           (select max(s.call_seq) from suspensions s where s.run_id = $1) as last_seq
    from runs where id = $1
), moved as (
    update runs set
        state = 'running', halt_reason = null, detail = '', ended_at = null, stop_requested = null,
        max_steps = $3, max_tool_calls = $4, max_spend_usd = $5, max_elapsed_ms = $6,
        scope = coalesce($7, scope),
        scope_resolved_at = case when $7 is null then scope_resolved_at else coalesce($9::timestamptz, now()) end,
        continuations = continuations + 1, news = news + 1,
        claim_token = case when $8::uuid is not null then gen_random_uuid() end, claimed_by = $8,
        claimable_at = coalesce($9::timestamptz, now())
    where id = $1 and state = 'halted' and halts = $2 and not followed_up
    returning *
), unsettled as (
    update actions set state = 'unknown', ended_at = null
    from moved
    where actions.run_id = moved.id and actions.state in ('succeeded', 'failed')
      and exists (select from suspensions s
                  where s.run_id = actions.run_id and s.call_seq = actions.call_seq
                    and s.call_position = actions.call_position and s.kind = 'outcome'
                    and s.status in ('happened', 'did_not_happen'))
      and not exists (select from messages m
                      where m.run_id = actions.run_id and m.role = 'tool' and m.answers_seq = actions.call_seq
                        and m.answers_position = actions.call_position)
), redrawn as (
    update outbox set version = version + 1, attempts = 0, refused_at = null,
                      next_attempt_at = coalesce($9::timestamptz, now()), updated_at = coalesce($9::timestamptz, now()),
                      content = case when outbox.kind = 'card' and before.expired
                                          and exists (select from suspensions s
                                                      where s.id = outbox.ref and s.call_seq = before.last_seq)
                                     then '{"asked_again":true}' else outbox.content end
    from moved, before
    where outbox.run_id = moved.id
      and (outbox.kind = 'progress' or (outbox.kind = 'halt' and outbox.ref = $2::integer::text)
           -- an expired card offers to ask again only while its run is halted
           or (outbox.kind = 'card' and exists (select from suspensions s
                                                where s.run_id = moved.id and s.id = outbox.ref
                                                  and s.status = 'expired')))
)
select to_json(moved) as run from moved;
