-- name: load_run(run_id, claim_token, now, after, long_from)
-- Everything the next act depends on, as one snapshot, but the first $4 messages; with $2 only while that claim holds.
-- A row for each message, in no order, and one without a seq, whose body is all the rest as one JSON object: rows are
-- sent as they are read, while an array of them is copied anew as it grows. No row: no such run, or the claim is lost.
-- Where $5 or more messages come before a last turn with an approved call, they stay unread ("unread" of them), if every
-- message is there and still what its writer encoded; null: all are read.
with held as (
    select * from runs r where r.id = $1 and ($2::uuid is null or (r.claim_token = $2 and r.state = 'running'))
), approved as (
    select s.call_seq as seq
    from held r join suspensions s on s.run_id = r.id
    where s.status = 'approved' and s.call_seq >= $5::integer
      and case when not exists (select from messages m
                                where m.run_id = r.id and m.seq > s.call_seq
                                  and (m.role <> 'tool' or (m.answers_seq, m.answers_position) = (s.call_seq, s.call_position)))
               then r.next_seq = (select count(*) from messages m
                                  where m.run_id = r.id and m.body_hash = hashtextextended(m.body, 1)) end
    limit 1
)
select null::integer as seq, json_build_object(
       'run', to_json(r),
       'unread', coalesce((select seq from approved), 0),
       'suspensions',
       (select coalesce(json_agg(x order by x.call_seq, x.call_position, x.number), '[]')
        from (select s.*, array(select v.user_id from votes v where v.suspension_id = s.id order by v.at, v.user_id) as votes
              from suspensions s where s.run_id = r.id) x),
       'actions',
       (select coalesce(json_agg(x order by x.call_seq, x.call_position, x.intended_at), '[]')
        from (select a.*, extract(epoch from coalesce($3::timestamptz, now()) - a.intended_at) as intended_age_s
              from actions a where a.run_id = r.id) x),
       'mail',
       (select coalesce(json_agg(x order by x.ts collate "C"), '[]')
        from (select i.id, i.text, i.user_id, i.ts from inbox i where i.run_id = r.id and i.handled_at is null) x),
       'now', coalesce($3::timestamptz, now())
       )::text as body, null::bytea as raw, null::integer as answers_seq, null::integer as answers_position
from held r
union all
select seq, body, raw, answers_seq, answers_position
from messages
where run_id = $1 and seq >= coalesce((select seq from approved), $4::integer)
  and exists (select from held);

-- name: read_run(run_id)
select to_json(runs) as run from runs where id = $1;

-- name: list_runs(team_id, user_id, states, room)
-- Newest first; a null team or user means all, no states means any.
select to_json(runs) as run from runs
where team_id = coalesce($1, team_id) and user_id = coalesce($2, user_id)
  and (cardinality($3::text[]) = 0 or state = any($3))
order by created_at desc limit $4;

-- name: list_thread_runs(team_id, channel_id, thread_ts, user_id)
-- Newest first.
select to_json(runs) as run from runs
where team_id = $1 and channel_id = $2 and thread_ts = $3 and user_id = $4
order by created_at desc;

-- name: read_suspension(suspension_id, now)
select to_json(r) as run, to_json(s) as suspension,
       array(select v.user_id from votes v where v.suspension_id = s.id order by v.at, v.user_id) as votes,
       s.expires_at <= coalesce($2::timestamptz, now()) as over
from suspensions s join runs r on r.id = s.run_id
where s.id = $1;

-- name: list_pending(run_id, room)
-- Open suspensions, oldest first; a null run means all.
select to_json(r) as run, to_json(s) as suspension,
       array(select v.user_id from votes v where v.suspension_id = s.id order by v.at, v.user_id) as votes
from suspensions s join runs r on r.id = s.run_id
where s.status = 'open' and s.run_id = coalesce($1, s.run_id)
order by s.opened_at, s.id limit $2;

-- name: read_clock()
-- The database's own time.
select now() as now;

-- name: read_timeline(run_id)
-- A run's trace, oldest first.
select at, kind, body, ms, spend_usd from trace where run_id = $1 order by id;

-- name: await_earlier_commits()
-- What an earlier commit wrote may not have reached the synchronous standby when its writer gave up waiting. A commit
-- that wrote nothing waits for nobody; this one writes an empty record, so that it waits for all before it.
select pg_logical_emit_message(true, 'atlas', '')::text as at;
