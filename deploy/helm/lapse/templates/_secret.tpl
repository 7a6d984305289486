{{- define "lapse.secretData" -}}
stringData:
  {{- with .Values.kafka.password }}
  password: {{ . | quote }}
  {{- end }}
  {{- with .Values.kafka.clientProperties }}
  client.properties: {{ . | quote }}
  {{- end }}
{{- end }}
