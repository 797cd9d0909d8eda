-- Who waits for a worker, by person: so that a claim finds each person's first runs however many wait of somebody else.
-- Both its key and its condition are said as no other index says them: a plan made while the table was small must not
-- take another one. Steps change no column that it names, and a run that is claimed at once is never in it.
create index runs_in_line on runs ((team_id || '/' || user_id), claimable_at)
    where state = 'running' and num_nulls(claim_token) = 1;
