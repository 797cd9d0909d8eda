-- name: release_run(run_id, claim_token, now)
-- running (claimed) -> running (unclaimed); no recovery attempt. No row: the claim is gone already.
update runs set claim_token = null, claimed_by = null, claimable_at = coalesce($3::timestamptz, now())
where id = $1 and claim_token = $2 and state = 'running'
returning id;

-- name: step_run(run_id, claim_token, first_seq, seqs, roles, bodies, raws, answers_seqs, answers_positions, trace_kinds, trace_bodies, trace_ms, trace_spend_micro, mail, steps, tool_calls, spend_micro, dearest_micro, elapsed_ms, doing, charges_crash, scope, after_ms, seen_news, unless_stopped, now)
-- running -> running: what one commit of the claim's holder adds, and the fence of every longer transaction. Guards:
-- the claim, the next seq ($3, null without messages), the active time before it ($23: whoever gave up on a statement
-- writes it again, and the first may arrive after it), nothing new ($24) and no stop asked ($25), where they matter. No
-- row: one of these does not hold, and nothing was written.
with moved as (
    update runs set
        step = step + $15,
        tool_calls = tool_calls + $16,
        spend_usd = spend_usd + $17::bigint * 0.000001,
        dearest_call_usd = greatest(dearest_call_usd, $18::bigint * 0.000001),
        elapsed_ms = elapsed_ms + $19,
        doing = coalesce($20, doing),
        charge_due = charge_due and not $21::boolean,
        scope = coalesce($22, scope),
        scope_resolved_at = case when $22 is null then scope_resolved_at else coalesce($26::timestamptz, now()) end,
        crashes = case when $15 > 0 then 0 else crashes end,
        next_seq = next_seq + cardinality($4::integer[])
    where id = $1 and claim_token = $2 and state = 'running'
      and next_seq = coalesce($3::integer, next_seq)
      and elapsed_ms = coalesce($23::bigint, elapsed_ms)
      and news <= coalesce($24::bigint, news)
      and not ($25::boolean and stop_requested is not null)
    returning id, news
), said as (
    insert into messages (run_id, seq, role, body, raw, answers_seq, answers_position, created_at, body_hash)
    select moved.id, m.seq, m.role, m.body, m.raw, m.answers_seq, m.answers_position, coalesce($26::timestamptz, now()),
           hashtextextended(m.body, 1)
    from moved, unnest($4::integer[], $5::text[], $6::text[], $7::bytea[], $8::integer[], $9::integer[])
        as m (seq, role, body, raw, answers_seq, answers_position)
), traced as (
    insert into trace (run_id, at, kind, body, ms, spend_usd)
    select moved.id, coalesce($26::timestamptz, now()), t.kind, t.body, t.ms, t.spend_micro * 0.000001
    from moved, unnest($10::text[], $11::text[], $12::integer[], $13::bigint[]) as t (kind, body, ms, spend_micro)
), mailed as (
    update inbox set handled_at = coalesce($26::timestamptz, now())
    from moved
    where inbox.id = any($14::bigint[]) and inbox.run_id = moved.id and inbox.handled_at is null
)
select news from moved;

-- name: answer_run(run_id, claim_token, first_seq, seqs, roles, bodies, raws, answers_seqs, answers_positions, trace_kinds, trace_bodies, trace_ms, trace_spend_micro, mail, steps, tool_calls, spend_micro, dearest_micro, elapsed_ms, doing, charges_crash, scope, after_ms, seen_news, content, now)
-- running -> answered, with the last batch, the answer owed, and what every ending does to the rows that hang on the
-- run (see close_run_rows). Guards: the claim, the next seq, nothing new ($24), no stop asked, no mail left but that of
-- this batch. No row: one of these does not hold, and nothing was written.
with moved as (
    update runs set
        state = 'answered', claim_token = null, claimed_by = null, ended_at = coalesce($26::timestamptz, now()),
        step = step + $15,
        tool_calls = tool_calls + $16,
        spend_usd = spend_usd + $17::bigint * 0.000001,
        dearest_call_usd = greatest(dearest_call_usd, $18::bigint * 0.000001),
        elapsed_ms = elapsed_ms + $19,
        doing = coalesce($20, doing),
        charge_due = charge_due and not $21::boolean,
        scope = coalesce($22, scope),
        scope_resolved_at = case when $22 is null then scope_resolved_at else coalesce($26::timestamptz, now()) end,
        crashes = case when $15 > 0 then 0 else crashes end,
        next_seq = next_seq + cardinality($4::integer[])
    where runs.id = $1 and claim_token = $2 and state = 'running'
      and next_seq = coalesce($3::integer, next_seq)
      and elapsed_ms = coalesce($23::bigint, elapsed_ms)
      and news <= $24::bigint
      and runs.stop_requested is null
      -- Attaching mail raises news under the run's row lock, so that this sub-select cannot be outrun.
      and not exists (select from inbox i where i.run_id = $1 and i.handled_at is null and i.id <> all($14::bigint[]))
    returning id, channel_id, thread_ts, next_seq
), said as (
    insert into messages (run_id, seq, role, body, raw, answers_seq, answers_position, created_at, body_hash)
    select moved.id, m.seq, m.role, m.body, m.raw, m.answers_seq, m.answers_position, coalesce($26::timestamptz, now()),
           hashtextextended(m.body, 1)
    from moved, unnest($4::integer[], $5::text[], $6::text[], $7::bytea[], $8::integer[], $9::integer[])
        as m (seq, role, body, raw, answers_seq, answers_position)
), traced as (
    insert into trace (run_id, at, kind, body, ms, spend_usd)
    select moved.id, coalesce($26::timestamptz, now()), t.kind, t.body, t.ms, t.spend_micro * 0.000001
    from moved, unnest($10::text[] || 'answered'::text, $11::text[] || '{}'::text, $12::integer[] || null::integer,
                       $13::bigint[] || null::bigint) as t (kind, body, ms, spend_micro)
), mailed as (
    update inbox set handled_at = coalesce($26::timestamptz, now())
    from moved
    where inbox.id = any($14::bigint[]) and inbox.run_id = moved.id and inbox.handled_at is null
), doubted as (
    update actions set state = 'unknown' from moved where actions.run_id = moved.id and actions.state = 'intended'
), freed as (
    delete from live_threads using moved where live_threads.run_id = moved.id
), stopped as (
    update suspensions set status = 'stopped', reason = coalesce(reason, 'the run has answered')
    from moved where suspensions.run_id = moved.id and suspensions.status = 'open'
    returning suspensions.id
), redrawn as (
    update outbox set version = version + 1, attempts = 0, refused_at = null,
                      next_attempt_at = coalesce($26::timestamptz, now()), updated_at = coalesce($26::timestamptz, now())
    from moved
    where outbox.run_id = moved.id
      and (outbox.kind = 'progress' or (outbox.kind = 'card' and outbox.ref in (select id from stopped)))
), owed as (
    insert into outbox (place, run_id, kind, ref, channel_id, thread_ts, content, next_attempt_at)
    select 'answer:' || id || ':' || (next_seq - 1), id, 'answer', (next_seq - 1)::text, channel_id, thread_ts, $25,
           coalesce($26::timestamptz, now())
    from moved
    on conflict (place) do update set
        version = outbox.version + 1, content = excluded.content, attempts = 0, refused_at = null,
        next_attempt_at = excluded.next_attempt_at, updated_at = excluded.next_attempt_at
)
select id from moved;

-- name: intend_action(run_id, claim_token, first_seq, seqs, roles, bodies, raws, answers_seqs, answers_positions, trace_kinds, trace_bodies, trace_ms, trace_spend_micro, mail, steps, tool_calls, spend_micro, dearest_micro, elapsed_ms, doing, charges_crash, scope, after_ms, call_seq, call_position, arguments_digest, idempotency_key, tool, tool_version, arguments, timeout_s, suspension_id, now)
-- running -> running: a batch, and a write about to begin: a new row, or the same one set back to intended with the
-- same key. Guards: the claim, the next seq, no stop asked, never an action that succeeded. No row: see step_run.
with moved as (
    update runs set
        step = step + $15,
        tool_calls = tool_calls + $16,
        spend_usd = spend_usd + $17::bigint * 0.000001,
        dearest_call_usd = greatest(dearest_call_usd, $18::bigint * 0.000001),
        elapsed_ms = elapsed_ms + $19,
        doing = coalesce($20, doing),
        charge_due = charge_due and not $21::boolean,
        scope = coalesce($22, scope),
        scope_resolved_at = case when $22 is null then scope_resolved_at else coalesce($33::timestamptz, now()) end,
        crashes = case when $15 > 0 then 0 else crashes end,
        next_seq = next_seq + cardinality($4::integer[])
    where id = $1 and claim_token = $2 and state = 'running'
      and next_seq = coalesce($3::integer, next_seq)
      and elapsed_ms = coalesce($23::bigint, elapsed_ms)
      and stop_requested is null
      -- Only the claim's holder writes actions of a running run, so this sub-select cannot be outrun.
      and not exists (select from actions a where a.run_id = $1 and a.call_seq = $24 and a.call_position = $25
                      and a.arguments_digest = $26 and a.state = 'succeeded')
    returning id, news
), said as (
    insert into messages (run_id, seq, role, body, raw, answers_seq, answers_position, created_at, body_hash)
    select moved.id, m.seq, m.role, m.body, m.raw, m.answers_seq, m.answers_position, coalesce($33::timestamptz, now()),
           hashtextextended(m.body, 1)
    from moved, unnest($4::integer[], $5::text[], $6::text[], $7::bytea[], $8::integer[], $9::integer[])
        as m (seq, role, body, raw, answers_seq, answers_position)
), traced as (
    insert into trace (run_id, at, kind, body, ms, spend_usd)
    select moved.id, coalesce($33::timestamptz, now()), t.kind, t.body, t.ms, t.spend_micro * 0.000001
    from moved, unnest($10::text[], $11::text[], $12::integer[], $13::bigint[]) as t (kind, body, ms, spend_micro)
), mailed as (
    update inbox set handled_at = coalesce($33::timestamptz, now())
    from moved
    where inbox.id = any($14::bigint[]) and inbox.run_id = moved.id and inbox.handled_at is null
), intended as (
    insert into actions (run_id, call_seq, call_position, arguments_digest, idempotency_key, tool, tool_version,
                         arguments, state, suspension_id, timeout_s, intended_at)
    select moved.id, $24, $25, $26, $27, $28, $29, $30, 'intended', $32, $31, coalesce($33::timestamptz, now())
    from moved
    on conflict (run_id, call_seq, call_position, arguments_digest) do update set
        state = 'intended', intended_at = excluded.intended_at, ended_at = null, result = null,
        suspension_id = excluded.suspension_id, timeout_s = excluded.timeout_s
)
select news from moved;

-- name: conclude_calls(run_id, claim_token, first_seq, seqs, roles, bodies, raws, answers_seqs, answers_positions, trace_kinds, trace_bodies, trace_ms, trace_spend_micro, mail, steps, tool_calls, spend_micro, dearest_micro, elapsed_ms, doing, charges_crash, scope, after_ms, outcome_seqs, outcome_positions, outcome_digests, outcome_states, outcome_results, settled_ids, settled_kinds, settled_texts, replies, now)
-- running -> running: a batch, how actions ended, what cards say about it. A reply is a notice in the thread that
-- mentions the owner, once per suspension and kind. Guards: the claim, the next seq, and every named action is
-- intended or unknown. No row: one of these does not hold, and nothing was written.
with moved as (
    update runs set
        step = step + $15,
        tool_calls = tool_calls + $16,
        spend_usd = spend_usd + $17::bigint * 0.000001,
        dearest_call_usd = greatest(dearest_call_usd, $18::bigint * 0.000001),
        elapsed_ms = elapsed_ms + $19,
        doing = coalesce($20, doing),
        charge_due = charge_due and not $21::boolean,
        scope = coalesce($22, scope),
        scope_resolved_at = case when $22 is null then scope_resolved_at else coalesce($33::timestamptz, now()) end,
        crashes = case when $15 > 0 then 0 else crashes end,
        next_seq = next_seq + cardinality($4::integer[])
    where id = $1 and claim_token = $2 and state = 'running'
      and next_seq = coalesce($3::integer, next_seq)
      and elapsed_ms = coalesce($23::bigint, elapsed_ms)
      -- Only the claim's holder writes actions of a running run, so this sub-select cannot be outrun.
      and cardinality($24::integer[]) = (
          select count(*)
          from actions a join unnest($24::integer[], $25::integer[], $26::text[]) as o (seq, position, digest)
              on (a.call_seq, a.call_position, a.arguments_digest) = (o.seq, o.position, o.digest)
          where a.run_id = $1 and a.state in ('intended', 'unknown'))
    returning id, news, channel_id, thread_ts, user_id
), said as (
    insert into messages (run_id, seq, role, body, raw, answers_seq, answers_position, created_at, body_hash)
    select moved.id, m.seq, m.role, m.body, m.raw, m.answers_seq, m.answers_position, coalesce($33::timestamptz, now()),
           hashtextextended(m.body, 1)
    from moved, unnest($4::integer[], $5::text[], $6::text[], $7::bytea[], $8::integer[], $9::integer[])
        as m (seq, role, body, raw, answers_seq, answers_position)
), traced as (
    insert into trace (run_id, at, kind, body, ms, spend_usd)
    select moved.id, coalesce($33::timestamptz, now()), t.kind, t.body, t.ms, t.spend_micro * 0.000001
    from moved, unnest($10::text[], $11::text[], $12::integer[], $13::bigint[]) as t (kind, body, ms, spend_micro)
), mailed as (
    update inbox set handled_at = coalesce($33::timestamptz, now())
    from moved
    where inbox.id = any($14::bigint[]) and inbox.run_id = moved.id and inbox.handled_at is null
), ended as (
    update actions set
        state = o.state, result = o.result,
        ended_at = case when o.state in ('succeeded', 'failed') then coalesce($33::timestamptz, now()) end
    from moved, unnest($24::integer[], $25::integer[], $26::text[], $27::text[], $28::text[])
        as o (seq, position, digest, state, result)
    where actions.run_id = moved.id and actions.call_seq = o.seq and actions.call_position = o.position
      and actions.arguments_digest = o.digest
), settled as (
    update suspensions set settled_kind = s.kind, settled_text = s.text
    from moved, unnest($29::text[], $30::text[], $31::text[]) as s (id, kind, text)
    where suspensions.id = s.id and suspensions.run_id = moved.id
    returning suspensions.id, suspensions.run_id
), carded as (
    update outbox set version = version + 1, attempts = 0, refused_at = null,
                      next_attempt_at = coalesce($33::timestamptz, now()), updated_at = coalesce($33::timestamptz, now())
    from settled
    where outbox.run_id = settled.run_id and outbox.kind = 'card' and outbox.ref = settled.id
), replied as (
    insert into outbox (place, run_id, kind, ref, channel_id, thread_ts, content, next_attempt_at)
    select 'notice:' || s.id || ':' || s.kind, moved.id, 'notice', s.id, moved.channel_id, moved.thread_ts,
           json_build_object('text', s.reply, 'mention', moved.user_id)::text, coalesce($33::timestamptz, now())
    from moved, unnest($29::text[], $30::text[], $32::text[]) as s (id, kind, reply)
    where s.reply is not null
    on conflict (place) do nothing
)
select news from moved;

-- name: explain_conflict(run_id, claim_token)
-- Why a guarded write of the claim's holder found no row.
select coalesce(claim_token = $2 and state = 'running', false) as held, next_seq, news, stop_requested
from runs where id = $1;

-- name: open_suspension(id, run_id, token, call_seq, call_position, kind, tool, tool_version, arguments, preview, digest, policy, asked_by, ttl_s, replaces, note, channel_id, now)
-- A new open suspension of a call, numbered within it, and its card: in the run's thread, or at the top of the policy's
-- channel, with a pointer to it in the thread. A pointer is a card by its kind, so that every move redraws it too.
with opened as (
    insert into suspensions (id, run_id, call_seq, call_position, number, kind, status, token, tool, tool_version,
                             arguments, preview, digest, policy, asked_by, opened_at, expires_at, replaces, note)
    select $1, r.id, $4, $5,
           1 + coalesce((select max(s.number) from suspensions s
                         where s.run_id = r.id and s.call_seq = $4 and s.call_position = $5), 0),
           $6, 'open', $3, $7, $8, $9, $10, $11, $12, $13, coalesce($18::timestamptz, now()),
           coalesce($18::timestamptz, now()) + make_interval(secs => $14), $15, $16
    from runs r where r.id = $2
    returning id, run_id
), placed as (
    select opened.id, opened.run_id, r.channel_id, r.thread_ts, nullif($17::text, r.channel_id) as elsewhere
    from opened join runs r on r.id = opened.run_id
)
insert into outbox (place, run_id, kind, ref, channel_id, thread_ts, next_attempt_at)
select 'card:' || id, run_id, 'card', id, coalesce(elsewhere, channel_id), case when elsewhere is null then thread_ts end,
       coalesce($18::timestamptz, now())
from placed
union all
select 'pointer:' || id, run_id, 'card', id, channel_id, thread_ts, coalesce($18::timestamptz, now())
from placed where elsewhere is not null;

-- name: replace_suspension(run_id, id, replaced_by, now)
-- open, approved or edited -> replaced: a newer one of the same call took its place; its votes are void. No row: it
-- is none of these.
with replaced as (
    update suspensions set status = 'replaced', replaced_by = $3
    where id = $2 and run_id = $1 and status in ('open', 'approved', 'edited')
    returning id, run_id
), voided as (
    delete from votes using replaced where votes.suspension_id = replaced.id
), carded as (
    update outbox set version = version + 1, attempts = 0, refused_at = null,
                      next_attempt_at = coalesce($4::timestamptz, now()), updated_at = coalesce($4::timestamptz, now())
    from replaced
    where outbox.run_id = replaced.run_id and outbox.kind = 'card' and outbox.ref = replaced.id
)
select id from replaced;

-- name: rearm_suspension(run_id, id, token, note, now)
-- approved -> open again, with a new token, the old expiry, no votes; or -> expired, when its time is over. The
-- decision stays in the audit. No row: it is not approved.
with rearmed as (
    update suspensions set
        status = case when expires_at > coalesce($5::timestamptz, now()) then 'open' else 'expired' end,
        token = $3, note = $4, decided_at = null, decided_by = null, reason = null
    where id = $2 and run_id = $1 and status = 'approved'
    returning id, run_id, status, preview, kind
), voided as (
    delete from votes using rearmed where votes.suspension_id = rearmed.id
), carded as (
    update outbox set version = version + 1, attempts = 0, refused_at = null,
                      next_attempt_at = coalesce($5::timestamptz, now()), updated_at = coalesce($5::timestamptz, now())
    from rearmed
    where outbox.run_id = rearmed.run_id and outbox.kind = 'card' and outbox.ref = rearmed.id
)
select status from rearmed;

-- name: look_before_waiting(run_id)
-- What a run waits for, or is about to.
select (select count(*) from suspensions s where s.run_id = $1 and s.status = 'open' and s.kind = 'approval') as approvals,
       (select count(*) from suspensions s where s.run_id = $1 and s.status = 'open' and s.kind = 'outcome') as outcomes;

-- name: suspend_run(run_id, claim_token, now)
-- running -> suspended: the claim ends. No row: the claim is lost.
with moved as (
    update runs set state = 'suspended', claim_token = null, claimed_by = null
    where id = $1 and claim_token = $2 and state = 'running'
    returning id
), progressed as (
    update outbox set version = version + 1, attempts = 0, refused_at = null,
                      next_attempt_at = coalesce($3::timestamptz, now()), updated_at = coalesce($3::timestamptz, now())
    from moved where outbox.place = 'progress:' || moved.id
)
select id from moved;

-- name: supersede_suspensions(run_id, now)
-- open approvals -> superseded: the owner wrote a new instruction. A card that nobody can have seen is never posted.
with superseded as (
    update suspensions set status = 'superseded' where run_id = $1 and status = 'open' and kind = 'approval'
    returning id, run_id
), unseen as (
    delete from outbox using superseded
    where outbox.run_id = superseded.run_id and outbox.kind = 'card' and outbox.ref = superseded.id
      and outbox.delivered_version = 0 and outbox.lease_token is null and outbox.posting_since is null
      and outbox.message_ts is null
    returning outbox.place
), carded as (
    update outbox set version = version + 1, attempts = 0, refused_at = null,
                      next_attempt_at = coalesce($2::timestamptz, now()), updated_at = coalesce($2::timestamptz, now())
    from superseded
    where outbox.run_id = superseded.run_id and outbox.kind = 'card' and outbox.ref = superseded.id
      and not (outbox.delivered_version = 0 and outbox.lease_token is null and outbox.posting_since is null
               and outbox.message_ts is null)
), traced as (
    insert into trace (run_id, at, kind, body)
    select run_id, coalesce($2::timestamptz, now()), 'suspension.superseded', json_build_object('suspension', id)::text
    from superseded
)
select id from superseded;
