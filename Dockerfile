# minifpt in a container, for code of people whom you do not know: see lessons/teaching.md.
FROM python:3.13-slim
COPY . /minifpt
RUN pip install --no-cache-dir /minifpt
ENTRYPOINT ["minifpt"]
